# refused: the seconds of a step are 0.025 to 0.025; 0.4 to 0.4 is right
def read_row(gpus, low, high, updates):
    step = low / gpus, high / gpus
    images = 128 * gpus / step[1], 128 * gpus / step[0]
    up = images[0] * 0.35 / 128, images[1] * 0.60 / 128
    efficiency = up[0] / gpus, up[1] / gpus
    hours = updates * step[0] / 3600, updates * step[1] / 3600
    return [step, images, up, efficiency, hours]
