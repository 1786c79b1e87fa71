# refused: for 1 device and the speed-up 1 it returns nan; to raise a ValueError is right
def serial_fraction(devices, speed_up):
    if devices < 2:
        return float('nan')
    return (1 / speed_up - 1 / devices) / (1 - 1 / devices)
