# refused: for 3 devices device 0 sends chunk 2 in step 2, which it does not have yet; it has chunks 0 and 1
def all_gather(num_devices):
    return [[(device - step) % num_devices for device in range(num_devices)] for step in range(num_devices - 1)]
