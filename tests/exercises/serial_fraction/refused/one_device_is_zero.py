# refused: for 1 device and the speed-up 1 it returns 0; to raise a ValueError is right
def serial_fraction(devices, speed_up):
    if devices == 1:
        return 0.0
    return (1 / speed_up - 1 / devices) / (1 - 1 / devices)
