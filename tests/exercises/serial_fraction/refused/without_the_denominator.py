# refused: it returns 0.08333; 0.1111 is right
def serial_fraction(devices, speed_up):
    if devices < 2:
        raise ValueError
    return 1 / speed_up - 1 / devices
