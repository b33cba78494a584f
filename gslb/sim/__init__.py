"""The simulator: engines, links, clients and faults on a manual clock around the router that also serves.

setting, result     what a world is made of, and what a run of it comes to; with world.run all that others need
world, agenda       the loop: a heap of calls on simulated time
journey, edge       a request and its attempts; what an edge does with them, as the live proxy would
desk, watch         who decides at an edge and what it observes: the product's router, fleet view, hold queue
skywalker, oracle   who decides in the baselines that only exist here
site, engine        an endpoint as it really is: its server, and the continuous batching behind it
links, faults       round trips with jitter; what goes wrong
score               what became of every request
"""
