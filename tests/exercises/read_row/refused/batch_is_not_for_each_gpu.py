# refused: the images a second are 320 to 320; 1280 to 1280 is right
def read_row(gpus, low, high, updates):
    step = gpus * low, gpus * high
    images = 128 / step[1], 128 / step[0]
    up = images[0] * 0.35 / 128, images[1] * 0.60 / 128
    efficiency = up[0] / gpus, up[1] / gpus
    hours = updates * step[0] / 3600, updates * step[1] / 3600
    return [step, images, up, efficiency, hours]
