# refused: the speed-up is 0.875 to 1.5; 3.5 to 6 is right
def read_row(gpus, low, high, updates):
    step = gpus * low, gpus * high
    images = 128 * gpus / step[1], 128 * gpus / step[0]
    up = 0.35 / step[1], 0.60 / step[0]
    efficiency = up[0] / gpus, up[1] / gpus
    hours = updates * step[0] / 3600, updates * step[1] / 3600
    return [step, images, up, efficiency, hours]
