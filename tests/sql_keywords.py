"""Words of SQL that a column may be called, too."""

from __future__ import annotations

import re

# Those of Spark 4.3's sql_keywords() that its parser, or Polars', gives a meaning in an expression.
KEYWORDS = re.findall(
    r"\w+",
    """
    all and any array as asc at between both by case cast collate count cross current current_date
    current_time current_timestamp current_user data date day day_of_week days decimal default
    delete desc distinct div drop else end escape except exclude exists extract false fetch filter
    first float for from full function group grouping having hour identifier if ilike in index
    inner insert int integer intersect interval into is join last lateral leading left like limit
    list local localtime localtimestamp long map match minute minus month name natural no not null
    nulls of offset on only or order outer over overlaps partition percent position primary qualify
    range rank regexp replace right rlike row rows second select semi session session_user set some
    start string struct symmetric table then time timestamp to top trailing trim true truncate type
    union unique unknown update user using value values view week when where window with within year
    zone
    """,
)
