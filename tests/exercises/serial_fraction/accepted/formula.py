def serial_fraction(devices, speed_up):
    if devices < 2:
        raise ValueError('one device says nothing')
    return (1 / speed_up - 1 / devices) / (1 - 1 / devices)
