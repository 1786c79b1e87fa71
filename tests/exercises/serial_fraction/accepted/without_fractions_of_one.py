def serial_fraction(devices, speed_up):
    """The same formula, multiplied by speed_up * devices."""
    if devices == 1:
        raise ValueError(f'{devices} device')
    return (devices - speed_up) / (speed_up * (devices - 1))
