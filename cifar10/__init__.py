"""Data-parallel training of a CIFAR-10 network in TensorFlow's graph mode.

Each line below is a layer; a file imports only from lower layers and from its own package:

    local_cluster show_inputs replay  programs: a cluster on this machine, a picture of what is fed, a step taken again
    cli                               the command line: flags, --check, exit statuses
    explain                           where the time of a step goes
    training                          the graph of a step, and the loop
    plan trained                      all that is decided before a graph is built; what is done with a trained model
    recipe run cluster                what is trained and how; what a run writes; the processes of a cluster
    settings data parallel networks   what can be set; images; towers and update modes; networks
    optim registry directories files signals console timeline errors
                                      the ground, each of which may import those to its right
"""
