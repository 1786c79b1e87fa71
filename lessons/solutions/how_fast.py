"""Solutions of the exercises of lesson 9."""


def serial_fraction(devices, speed_up):
    """Lesson 9: the speed-up's formula, solved for the share that is not divided."""
    if devices < 2:
        raise ValueError('one device does not say what more of them would share')
    return (1 / speed_up - 1 / devices) / (1 - 1 / devices)


def overlapped(backward, sending):
    """Lesson 9: a gradient is sent when it has been computed and the link is free, whichever is later."""
    computed = sent = 0.0
    for computing, message in zip(reversed(backward), reversed(sending)):
        computed += computing
        sent = max(sent, computed) + message
    return sent


def read_row(gpus, low, high, updates):
    """Lesson 9: the seconds of a step are `sec/batch` times the number of GPUs; all else follows from them."""
    one = 128 / 0.60, 128 / 0.35
    step = gpus * low, gpus * high
    images = 128 * gpus / step[1], 128 * gpus / step[0]
    speed_up = images[0] / one[1], images[1] / one[0]
    return [step, images, speed_up, (speed_up[0] / gpus, speed_up[1] / gpus),
            (updates * step[0] / 3600, updates * step[1] / 3600)]
