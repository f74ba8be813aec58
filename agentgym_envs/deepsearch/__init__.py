"""DeepSearch: questions that are answered by searching a corpus over several turns."""
