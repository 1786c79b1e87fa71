# refused: for 1 device it raises ZeroDivisionError in line 4
def all_gather(num_devices):
    others = num_devices - 1
    ring = [device % others for device in range(num_devices)]
    return [[(device + step) % num_devices for device, _ in enumerate(ring)] for step in range(others)]
