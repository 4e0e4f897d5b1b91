"""The app's figures for a notebook: Plotly objects from the functions that the pages call, without Streamlit.

`trace` is what `focus_core.analyze` returns, `row` a row of `trace.layers`, K is `trace.config.num_groups`.
Every figure takes `dark=True` for a dark page. The app's tables that feed figures are here too.

| figure | call |
|---|---|
| group sizes | `layer_sizes(trace, row)`, `all_sizes(trace)` |
| token map | `token_map(trace)` |
| causal pairs of a layer | `pair_bar(pair_shares(trace, row), trace.layers[row])` |
| pairs in every layer | `share_bars(pair_table(trace), row, what="causal pairs")` |
| sparsity mask | `mask_image(pooled_pattern(trace, row), trace.layers[row], len(trace.tokens))` |
| balance | `largest_lines(balance_table(trace, balancing(trace.scores, ...)), K)` |
| agreement of layers | `agreement_map(trace, layer_agreement(trace.groups, K), row, other_row)` |
| groups of one layer in another | `flow_map(trace, row, other_row)` |
| tokens that change groups | `churn_line(step_table(trace, churn(trace.groups, K), agreement))` |
| what explains the groups | `share_lines(explain_layers(words))`, `share_bars_of(explain_layers(words)[row])` |
| parts of speech | `ami_by_layer(align(word_sample([trace], [tag_text(trace.text)])))` |
| speed of attention | `speedup_curves(record.points)`, `time_curves`, `memory_curves`, with `read_speed` |
| speed of a model | `model_curves(record.points, task)`, with `read_model_speed` |
| perplexity against kept pairs | `perplexity_frontier(find_results(files).table)` |
| frontier beside baselines | `frontier_lines(read_record(record))`, with `find_records` |

`balancing`, `layer_agreement`, `churn`, `pooled_pattern` and `pair_table` come from `focus_core.analysis`, `align`,
`word_sample` and `tag_text` from `focus_core.analysis.linguistics`.
"""

from __future__ import annotations

from workbench.charts.group_sizes import all_sizes, layer_sizes, size_table
from workbench.tokens.reads import pair_shares
from workbench.views.balance.charts import flip_lines, future_line, largest_lines, round_lines
from workbench.views.balance.tables import balance_table, flip_table, future_table
from workbench.views.explore.pairs import pair_bar
from workbench.views.explore.token_map import token_map
from workbench.views.layers.charts import agreement_map, churn_line, flow_map
from workbench.views.layers.tables import step_table
from workbench.views.linguistics.charts import ami_by_layer, residual_map
from workbench.views.linguistics.explained import share_bars_of, share_lines, share_table
from workbench.views.linguistics.tables import layer_table, residual_table
from workbench.views.quality.charts import frontier as perplexity_frontier
from workbench.views.quality.record_charts import difference_chart, frontier_lines, k_path, length_lines
from workbench.views.quality.records import find_records
from workbench.views.quality.records import read as read_record
from workbench.views.quality.tables import find_results
from workbench.views.sparsity.charts import mask_image, share_bars
from workbench.views.speed.charts import error_curves, memory_curves, model_curves, speedup_curves, time_curves
from workbench.views.speed.tables import read_model_speed, read_speed, shipped_speeds
from workbench.views.train.charts import training_curves

__all__ = [
    "agreement_map",
    "all_sizes",
    "ami_by_layer",
    "balance_table",
    "churn_line",
    "difference_chart",
    "error_curves",
    "find_records",
    "find_results",
    "flip_lines",
    "flip_table",
    "flow_map",
    "frontier_lines",
    "future_line",
    "future_table",
    "k_path",
    "largest_lines",
    "layer_sizes",
    "layer_table",
    "length_lines",
    "mask_image",
    "memory_curves",
    "model_curves",
    "pair_bar",
    "pair_shares",
    "perplexity_frontier",
    "read_model_speed",
    "read_record",
    "read_speed",
    "residual_map",
    "residual_table",
    "round_lines",
    "share_bars",
    "share_bars_of",
    "share_lines",
    "share_table",
    "shipped_speeds",
    "size_table",
    "speedup_curves",
    "step_table",
    "time_curves",
    "token_map",
    "training_curves",
]
