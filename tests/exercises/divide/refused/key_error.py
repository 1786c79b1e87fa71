# refused: for the framework 'Torch' it raises KeyError
def divide(framework, loss_sum, local, world):
    divisors = {'graph towers': local, 'tf.distribute': local * world, 'Keras': local, 'PyTorch': local,
                'JAX': local * world, 'Horovod': local, 'MXNet': 1}
    return loss_sum / divisors[framework]
