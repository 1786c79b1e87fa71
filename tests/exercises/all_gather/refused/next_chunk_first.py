# refused: for 2 devices device 0 sends chunk 1 in step 1, which it does not have yet; it has chunk 0
def all_gather(num_devices):
    return [[(device + step + 1) % num_devices for device in range(num_devices)] for step in range(num_devices - 1)]
