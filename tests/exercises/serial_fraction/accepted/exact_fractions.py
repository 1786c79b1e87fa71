from fractions import Fraction


def serial_fraction(devices, speed_up):
    if devices <= 1:
        raise ValueError('at least two devices')
    share = Fraction(1, devices)
    return float((1 / Fraction(speed_up) - share) / (1 - share))
