"""Measures of forgetting: outputs of models enter as arrays, numbers with intervals leave.

Nothing here trains, reads a file or knows a method: every function is a formula on arrays.  Rows of
a matrix are models and columns records, unless said otherwise.  :mod:`unwalk.runs.evaluate` makes
the models.  Formulas and sources: ``docs/measures.md``.

=================== =========================================================================
margins, attacks    probabilities and margins of logits; AUC, true positives at few false ones
population, ulira   membership inference: one attacker for all records, or one for each
divergence          KL of answers and KLOM, the KL of margins
forgetting_quality  the score of the NeurIPS 2023 challenge
gaussian_poison     does the model lean to the noise that its forgotten inputs had?
relearning          relearn time and resurfacing, from series over hops
matched_cost        what a walk had cost when it was as good as retraining
intervals           intervals over models and records, differences to retraining
=================== =========================================================================

Start reading at ``margins.margins``, then ``ulira.ulira``.
"""
