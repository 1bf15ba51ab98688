"""Queries that try to write, to read what is not theirs, or to take all time and memory."""

from __future__ import annotations

GROWING = "WITH RECURSIVE c(n, x) AS (SELECT 1, 'a' UNION ALL SELECT n + 1, substr(x || x, 1, 900) FROM c) SELECT "
CHAIN = "WITH a0 AS (SELECT DISTINCT 1 x FROM loans)" + "".join(
    f", a{n} AS (SELECT DISTINCT x FROM (SELECT x FROM a{n - 1} UNION SELECT x FROM a{n - 1}))" for n in range(1, 18)
)
FOURFOLD = "WITH a AS (SELECT 1 x)" + "".join(
    f", {name} AS (SELECT p.x FROM {last} p, {last} q, {last} r, {last} s)"
    for last, name in zip("abcde", "bcdef", strict=True)
)
ENDLESS = (
    "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT count(*) FROM c",
    "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT * FROM c",
    "WITH RECURSIVE c(x) AS (SELECT 'aaaaaaaaaa' UNION ALL SELECT x || x FROM c) SELECT max(length(x)) FROM c",
    GROWING + "* FROM c ORDER BY x DESC, n DESC",
    GROWING + "count(*) FROM (SELECT DISTINCT n, x FROM c)",
    GROWING + "count(DISTINCT x || n) FROM c",
    GROWING + "group_concat(x) FROM c",
    GROWING + "max(x) OVER (ORDER BY n DESC) FROM c",
    "SELECT count(*) FROM loans a, loans b, loans c, loans d",
    "SELECT a.*, b.* FROM loans a, loans b ORDER BY a.id + b.id",
    "SELECT count(*) FROM loans a CROSS JOIN loans b WHERE a.branch LIKE '%' || b.branch || '%'",
    "SELECT group_concat(a.branch) FROM loans a, loans b",
    "SELECT DISTINCT a.id, b.id FROM loans a, loans b",
    "SELECT a.id FROM loans a, loans b GROUP BY a.id + b.id * 10000",
    "SELECT count(*) FROM loans a WHERE EXISTS (SELECT 1 FROM loans b WHERE EXISTS (SELECT 1 FROM loans c WHERE"
    " c.days + b.days + a.days < 0))",
    "SELECT instr(a.name || b.name, 'zzz') FROM members a, members b, members c",
    "SELECT count(*) FROM " + ", ".join(f"loans t{n}" for n in range(60)),
    "SELECT sum(a.days) OVER (ORDER BY a.id, b.id) FROM loans a, loans b",
)
WRITING = (
    *(
        "ATTACH 'x.db' AS y",
        "ATTACH DATABASE ':memory:' AS y",
        "DETACH main",
        "VACUUM",
        "VACUUM INTO '/tmp/x.db'",
        "REINDEX",
    ),
    *(
        "PRAGMA writable_schema = 1",
        "PRAGMA query_only = 0",
        "PRAGMA journal_mode = wal",
        "PRAGMA cache_size = 100000000",
    ),
    *("PRAGMA table_info(loans)", "SELECT * FROM pragma_table_info('loans')", "PRAGMA temp_store_directory = '/'"),
    *(
        "INSERT INTO loans VALUES (1)",
        "DELETE FROM loans",
        "UPDATE loans SET days = 1",
        "REPLACE INTO loans VALUES (1)",
    ),
    *("DROP TABLE loans", "CREATE TABLE x (a)", "CREATE TEMP TABLE x (a)", "CREATE VIEW v AS SELECT 1", "ANALYZE"),
    *("CREATE INDEX i ON loans (days)", "ALTER TABLE loans RENAME TO x", "CREATE VIRTUAL TABLE x USING fts5(a)"),
    *(
        "BEGIN",
        "COMMIT",
        "ROLLBACK",
        "SAVEPOINT x",
        "SELECT 1; DROP TABLE loans",
        "WITH x AS (SELECT 1) DELETE FROM loans",
    ),
    "CREATE TRIGGER t AFTER INSERT ON loans BEGIN SELECT 1; END",
)
FORBIDDEN = (
    *(
        "SELECT load_extension('x')",
        "SELECT readfile('/etc/passwd')",
        "SELECT writefile('/tmp/x', 'y')",
        "SELECT edit('x')",
    ),
    *("SELECT randomblob(1000000000)", "SELECT zeroblob(1000000000)", "SELECT hex(zeroblob(1000))", "SELECT random()"),
    *("SELECT printf('%.*c', 100000000, 'x')", "SELECT format('%1000000000d', 1)", "SELECT fts3_tokenizer('x')"),
    *(
        "SELECT sqlite_version()",
        "SELECT * FROM json_each('[1]')",
        "SELECT * FROM dbstat",
        "SELECT * FROM sqlite_temp_master",
    ),
    *(
        "SELECT date('now')",
        "SELECT CURRENT_TIMESTAMP",
        "SELECT datetime()",
        "EXPLAIN SELECT 1",
        "EXPLAIN QUERY PLAN SELECT 1",
    ),
    "SELECT * FROM generate_series(1, 1000000000)",
)
LARGE = (
    *(
        "x" * 1_000_000,
        "SELECT " + "(" * 500 + "1" + ")" * 500,
        "SELECT " + "+".join("1" * 1000),
        "SELECT " + "NOT " * 900 + "1",
    ),
    *(
        "SELECT " + ", ".join(["1"] * 2000),
        "SELECT * FROM " + ", ".join(["loans"] * 100),
        "SELECT 1 UNION " * 200 + "SELECT 1",
    ),
    *(
        "SELECT " + "CASE WHEN 1 THEN " * 200 + "1" + " END" * 200,
        CHAIN + " SELECT * FROM a17",
        FOURFOLD + " SELECT * FROM f",
    ),
    *("SELECT * FROM " + "(SELECT * FROM " * 60 + "loans" + ")" * 60, "SELECT abs(" * 90 + "1" + ")" * 90),
    "SELECT replace(replace(replace(replace(hex('aaaaaaaaaaaaaaaaaa'), '6', '1111111111'), '1', '1111111111'), '1',"
    " '1111111111'), '1', '1111111111')",
    "SELECT " + "||".join(["'" + "a" * 300 + "'"] * 10),
    "WITH "
    + ", ".join(f"c{n} AS (SELECT 1)" for n in range(70))
    + " SELECT * FROM "
    + ", ".join(f"c{n}" for n in range(60)),
)
BROKEN = (
    *(
        "",
        ";",
        "--",
        "/*",
        "SELECT /* ",
        "SELECT '",
        "'",
        '"',
        "SELECT '\x00'",
        "\ud800",
        "SELECT ?",
        "SELECT :a",
        "SELEC 1",
    ),
    *(
        "SELECT abs(-9223372036854775808)",
        "WITH x AS (SELECT * FROM y), y AS (SELECT * FROM x) SELECT * FROM x",
        "SELECT nothing",
    ),
    *(
        "SELECT * FROM nowhere",
        "SELECT days FROM loans, loans",
        "SELECT sum(sum(days)) FROM loans",
        "SELECT 1 FROM loans WHERE",
    ),
)
SPELLED = (
    *(
        "  aTTaCh/**/'x'AS y",
        "ATTACH ('a'||'b') AS z",
        "ATTACH 'file:/etc/passwd?mode=ro' AS p",
        "BEGIN/**/EXCLUSIVE",
        "END",
    ),
    *(
        'PrAgMa/*x*/main."user_version"=5',
        'SELECT * FROM "pragma_table_list"()',
        "SELECT * FROM main.pragma_user_version",
    ),
    *(
        'SELECT "randomblob"(1000000000)',
        "SELECT [zeroblob](1000000000)",
        "SELECT \"load_extension\"('x')",
        "RELEASE x",
    ),
    *(
        "SELECT 1;/**/DROP TABLE loans",
        "SELECT 1;;;SELECT 2",
        "SELECT 1\x00; DROP TABLE loans",
        "SELECT * FROM temp.sqlite_master",
    ),
    *(
        "/**/EXPLAIN SELECT 1",
        "--\nexplain query plan SELECT * FROM loans",
        "DELETE FROM loans RETURNING *",
        "\u200bSELECT 1",
    ),
    *(
        "WITH RECURSIVE x(a) AS (SELECT 1) UPDATE loans SET days = 1",
        "CREATE TABLE z AS SELECT * FROM loans",
        "SELECT ?1, @a, $b",
    ),
)
PRESENT = (
    *("SELECT date('n' || 'ow')", "SELECT date(x'6e6f77')", "SELECT strftime('%s')", "SELECT strftime('%Y', ' NOW ')"),
    *(
        "SELECT date(/**/)",
        "SELECT julianday(substr('xnow', 2))",
        "SELECT time(m) FROM (SELECT lower('NOW') m)",
        "SELECT current_date",
    ),
    *(
        "SELECT count(*) FROM loans WHERE day < CURRENT_TIMESTAMP",
        "SELECT date('subsec')",
        "SELECT date(char(110, 111, 119))",
    ),
)
LONG = "(SELECT substr(group_concat(name, ''), 1, 1900) a FROM (SELECT name FROM members LIMIT 300))"
WIDE = (
    f"SELECT {', '.join(['a'] * 90)} FROM {LONG}, loans",
    f"SELECT {', '.join(['a'] * 10)} FROM {LONG}, loans",
    "SELECT count(*) FROM members a, members b WHERE a.name || b.name || a.name LIKE '%" + "a%" * 90 + "z'",
    "SELECT sum(length(trim(a.name, b.name))) FROM members a, members b",
    "SELECT json('" + "[" * 1800 + "]" * 1800 + "')",
    "SELECT " + "hex(" * 30 + "'abcdef'" + ")" * 30,
    "SELECT " + "(SELECT " * 100 + "1" + ")" * 100,
    "SELECT * FROM " + "(" * 300 + "members" + ")" * 300,
    "WITH 'a' AS (SELECT 1 x)"
    + "".join(
        f", '{name}' AS (SELECT p.x FROM '{last}' p, '{last}' q, '{last}' r, '{last}' s)"
        for last, name in zip("abcde", "bcdef", strict=True)
    )
    + " SELECT * FROM 'f'",
    "as(" * 1300,
    "WITH a AS (" * 360,
    "SELECT max(days) OVER (ORDER BY id ROWS BETWEEN 4000 PRECEDING AND 4000 FOLLOWING EXCLUDE TIES) FROM loans",
    "SELECT * FROM loans WHERE id IN (WITH RECURSIVE c(x) AS (VALUES (1) UNION SELECT x + 1 FROM c) SELECT x FROM c)",
    "SELECT sum(9223372036854775807) FROM loans",
    "SELECT 'aaaa' REGEXP '(a+)+$'",
)
GROWN = "substr(replace(replace('" + "a" * 40 + "', 'a', '" + "a" * 30 + "'), 'a', '" + "a" * 20 + "'), 1, 14000)"
SLOW = (
    f"SELECT trim(x, y) FROM (SELECT {GROWN} x, replace({GROWN}, 'a', 'b') || 'a' y), loans",
    f"SELECT {'+'.join(['instr(x, y)'] * 30)} FROM (SELECT {GROWN} x, substr({GROWN}, 1, 9000) || 'b' y LIMIT 1), loans",
    f"SELECT sum(length(replace(x, y, ''))) FROM (SELECT {GROWN} x, substr({GROWN}, 1, 9000) || 'b' y LIMIT 1), loans",
    f"SELECT {'+'.join(['instr(x, 1)'] * 300)} FROM (SELECT {GROWN} x)",
    f"SELECT sum(x GLOB '{'*[a-c]' * 15}b') FROM (SELECT {GROWN} x), loans",
)
"""Single steps that take long where texts may be long, as in files."""
HOSTILE = (*ENDLESS, *WRITING, *FORBIDDEN, *LARGE, *BROKEN, *SPELLED, *PRESENT, *WIDE, *SLOW)
