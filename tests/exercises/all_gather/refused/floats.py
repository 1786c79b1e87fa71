# refused: step 1 is not 2 whole numbers
def all_gather(num_devices):
    return [[(device + step) % num_devices / 1 for device in range(num_devices)] for step in range(num_devices - 1)]
