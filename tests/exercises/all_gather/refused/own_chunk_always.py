# refused: for 3 devices device 0 ends with chunks 0 and 1 only; all 3 are right
def all_gather(num_devices):
    return [list(range(num_devices))] * (num_devices - 1)
