# refused: it returns 0.3333; 0.1111 is right
def serial_fraction(devices, speed_up):
    """Amdahl's limit: the speed-up with any number of devices is 1 / s."""
    if devices < 2:
        raise ValueError
    return 1 / speed_up
