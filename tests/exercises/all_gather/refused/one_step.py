# refused: for 3 devices the number of steps is 1; 2 is right
def all_gather(num_devices):
    return [list(range(num_devices))]
