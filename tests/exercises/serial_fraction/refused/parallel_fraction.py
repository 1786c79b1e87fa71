# refused: 0.1111 is right
def serial_fraction(devices, speed_up):
    """The share that is divided."""
    if devices < 2:
        raise ValueError
    return 1 - (1 / speed_up - 1 / devices) / (1 - 1 / devices)
