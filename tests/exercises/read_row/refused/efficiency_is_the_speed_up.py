# refused: the efficiency is 3.5 to 6; 0.875 to 1.5 is right
def read_row(gpus, low, high, updates):
    step = gpus * low, gpus * high
    images = 128 * gpus / step[1], 128 * gpus / step[0]
    up = images[0] * 0.35 / 128, images[1] * 0.60 / 128
    efficiency = up
    hours = updates * step[0] / 3600, updates * step[1] / 3600
    return [step, images, up, efficiency, hours]
