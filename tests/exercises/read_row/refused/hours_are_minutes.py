# refused: the hours are 200 to 200; 3.333 to 3.333 is right
def read_row(gpus, low, high, updates):
    step = gpus * low, gpus * high
    images = 128 * gpus / step[1], 128 * gpus / step[0]
    up = images[0] * 0.35 / 128, images[1] * 0.60 / 128
    efficiency = up[0] / gpus, up[1] / gpus
    hours = updates * step[0] / 60, updates * step[1] / 60
    return [step, images, up, efficiency, hours]
