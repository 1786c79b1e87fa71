# refused: the hours are 0.8333 to 0.8333; 3.333 to 3.333 is right
def read_row(gpus, low, high, updates):
    step = gpus * low, gpus * high
    images = 128 * gpus / step[1], 128 * gpus / step[0]
    up = images[0] * 0.35 / 128, images[1] * 0.60 / 128
    efficiency = up[0] / gpus, up[1] / gpus
    hours = updates * low / 3600, updates * high / 3600
    return [step, images, up, efficiency, hours]
