"""Runs: settings enter, walks are carried out and measured, results and files leave.

This is the one place where tasks, walks, methods, privacy and engines meet.

=================== =========================================================================
assemble            resolves settings; makes task, graph, noise and plans; facts of the header
run, compare        one run, watched and measured, or one run per seed, and their results
planner, dry_run    every way to forget, what it costs and proves, and the cheapest
finished            a finished run as the planner reads it
evaluate, ensemble  measures of a finished run, and the models that they need
sweep               many cells at once, over processes or machines; failed and killed ones
capacity            how many records can be forgotten at once, beside the formulas
metrics             what is measured; whether a method with noise beat a restart
store               the folder of a run, and whether it may be resumed on these data
loggers             what is told of every hop: TensorBoard, MLflow, Weights & Biases
releases            the register of draws of noise
replay              repeats a run and compares
=================== =========================================================================

Start reading at ``run.run``, then ``assemble.Assembled``.
"""
