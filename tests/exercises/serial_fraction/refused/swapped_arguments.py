# refused: is right
def serial_fraction(speed_up, devices):
    if devices < 2:
        raise ValueError
    return (1 / speed_up - 1 / devices) / (1 - 1 / devices)
