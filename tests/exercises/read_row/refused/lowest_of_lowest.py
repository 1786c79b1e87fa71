# refused: the images a second are 365.7 to 213.3; 213.3 to 365.7 is right
def read_row(gpus, low, high, updates):
    step = gpus * low, gpus * high
    images = 128 * gpus / step[0], 128 * gpus / step[1]
    up = images[0] * 0.35 / 128, images[1] * 0.60 / 128
    efficiency = up[0] / gpus, up[1] / gpus
    hours = updates * step[0] / 3600, updates * step[1] / 3600
    return [step, images, up, efficiency, hours]
