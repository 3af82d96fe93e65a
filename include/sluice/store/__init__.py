"""The bucket: one protocol of six verbs, three stores that keep its promises, and the journal."""
