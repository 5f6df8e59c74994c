import numpy as np

from tfxc.ops.row_updates import AdamHyper, lazy_adam_update, row_sgd_update, rowwise_adagrad_update

HYPER = AdamHyper(learning_rate=0.01, beta_1=0.9, beta_2=0.999, epsilon=1e-7)


def adam_step(table, momentum, velocity, gradient):
    momentum += (1 - HYPER.beta_1) * (gradient - momentum)
    velocity += (1 - HYPER.beta_2) * (gradient**2 - velocity)
    table -= HYPER.learning_rate * momentum / (np.sqrt(velocity) + HYPER.epsilon)


def sgd_step(table, gradient):
    table -= 0.5 * gradient


def adagrad_step(table, accumulator, gradient):
    accumulator += np.mean(gradient**2)
    table -= 0.3 * gradient / (np.sqrt(accumulator) + 1e-8)


# name -> (update on variables, step on one float64 row, shapes of the slots)
RULES = {
    "adam": (lambda *a, **b: lazy_adam_update(*a, HYPER, **b), adam_step, lambda shape: [shape, shape]),
    "sgd": (lambda *a, **b: row_sgd_update(*a, 0.5, **b), sgd_step, lambda shape: []),
    "adagrad": (
        lambda *a, **b: rowwise_adagrad_update(*a, 0.3, 1e-8, **b),
        adagrad_step,
        lambda shape: [shape[:1]],
    ),
}
