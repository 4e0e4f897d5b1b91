"""The texts of an alignment: documents, their words and tags, and the sample that every statistic takes."""
