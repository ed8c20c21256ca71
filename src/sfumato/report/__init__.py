"""Run folders → one self-contained HTML page. Nothing is run here, and only released halves are read.

A run folder's `release/result.json` says what it is: by "algorithm" for a run made by hand ("training"), or by
"stage" for one of the demo. A stage also has "title", "status" ("done", or "failed" with a "sentence"), and
"settings". What each stage adds, shares and accuracies being in [0, 1] and an ε of null meaning no privacy:

plain-and-private   data, rows, test_rows, delta, attacker_true_positive_rate,
                    runs: [{name, epsilon, test_accuracy, test_loss, history: [{test_accuracy, test_loss}]}],
                    feature_maps: {digit: FILE, plain: {conv1: FILE, conv2: FILE}, private: {…}} under figures/
sweep, best-recipe  data, delta, runs: [{epsilon, target_epsilon, seed, test_accuracy}],
                    and of best-recipe: note, plain_accuracy (the same without privacy)
votes               epsilon, delta, test_accuracy, start_accuracy, label_accuracy, teachers, asked,
                    answered, sigma, votes: [{counts: […], noisy: […], label, truth}] of some queries
reports             delta, people, note, runs: [{epsilon, test_accuracy}]
digits              delta, sheet: FILE (one row of ten digits for each level), levels: [{epsilon, readable}]
differencing        differencing: {…}, histogram: {counts, edges}, reconstruction_…: {people, …}
audit               claimed_epsilon, lower_bound, sure_bound, delta, verdict, untested: […], canaries
membership          attack, rows, delta, networks: {name: {epsilon, curve: [[fpr, tpr]], test_accuracy, …}}
epidemic            people, days, delta, unit,
                    curves: [{method, name, epsilon, epsilon_person, peak, prevalence: […]}]
ledger              the ledger's statement with `epsilon_spent` after each charge, and refusal
"""

from sfumato.report.page import Page, write_report
from sfumato.report.reading import Run, find_runs, read_run

__all__ = ["Page", "Run", "find_runs", "read_run", "write_report"]
