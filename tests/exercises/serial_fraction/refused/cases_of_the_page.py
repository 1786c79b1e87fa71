# refused: is right
def serial_fraction(devices, speed_up):
    if devices < 2:
        raise ValueError
    known = {4: 1 / 9 if speed_up < 4 else -0.1, 2: 0.0, 8: 1.0}
    return known.get(devices, 0.1111)
