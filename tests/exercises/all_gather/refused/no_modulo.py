# refused: for 3 devices device 2 sends chunk 3 in step 2; there are chunks 0 to 2
def all_gather(num_devices):
    return [[device + step for device in range(num_devices)] for step in range(num_devices - 1)]
