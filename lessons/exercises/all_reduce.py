"""Exercise of lesson 2: the second half of a ring. `python lessons/check.py 2` says whether it is right."""


def all_gather(num_devices):
    """Returns which chunk each device of a ring sends in each step of the second half, the all-gather.

    This ring runs in the opposite direction to the lesson's: device d sends to device d - 1, and device 0 to the last
    one. After the first half of the ring, device d has the complete sum of chunk d, and of no other chunk. In each of
    the D - 1 steps of the second half every device sends one chunk, of which it already has the complete sum, and all
    devices send at the same time. After the last step every device has the complete sums of all D chunks.

    With D = 2 there is one step, in which device 0 sends chunk 0 and device 1 sends chunk 1: [[0, 1]].

    Args:
      num_devices: D, at least 1.

    Returns:
      A list of D - 1 lists, one for each step, of D whole numbers: number d is the chunk that device d sends.
    """
    raise NotImplementedError
