"""One optimizer step, exactly: plain, sharded or pipelined; and the state that a step changes.

May import: conf, models, pipelines/data, pipelines/parallel, pipelines/training/job, pipelines/training/evaluation.
Not here: the loop over steps and saving (loop), files of checkpoints (checkpoints).
"""
