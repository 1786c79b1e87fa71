# refused: for 1 device and the speed-up 1 it raises ZeroDivisionError; to raise a ValueError is right
def serial_fraction(devices, speed_up):
    return (1 / speed_up - 1 / devices) / (1 - 1 / devices)
