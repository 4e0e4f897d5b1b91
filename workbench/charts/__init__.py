"""One file per chart: data in, a Plotly figure out."""
