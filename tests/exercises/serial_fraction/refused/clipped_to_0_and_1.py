# refused: for 4 devices and the speed-up 5.714 it returns 0; -0.1 is right
def serial_fraction(devices, speed_up):
    if devices < 2:
        raise ValueError
    return min(1, max(0, (1 / speed_up - 1 / devices) / (1 - 1 / devices)))
