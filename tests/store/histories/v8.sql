PRAGMA journal_mode = wal;
BEGIN TRANSACTION;
CREATE TABLE action(id INTEGER PRIMARY KEY, ts_ms INTEGER NOT NULL, verb TEXT NOT NULL,
  process INTEGER, dry_run INTEGER NOT NULL, phase TEXT NOT NULL, result TEXT, who TEXT, code TEXT) STRICT;
CREATE TABLE alert(id INTEGER PRIMARY KEY, key TEXT NOT NULL, kind TEXT NOT NULL,
  severity TEXT NOT NULL, state TEXT NOT NULL, gpu INTEGER REFERENCES gpu(id),
  process INTEGER REFERENCES process(id), opened_ts_ms INTEGER NOT NULL,
  changed_ts_ms INTEGER NOT NULL, resolved_ts_ms INTEGER, confirmations INTEGER NOT NULL DEFAULT 0,
  notices INTEGER NOT NULL DEFAULT 0, next_notice_ts_ms INTEGER, title TEXT NOT NULL,
  finding TEXT NOT NULL, code TEXT, facts TEXT) STRICT;
INSERT INTO "alert" VALUES(1,'leak:x','leak','warning','firing',NULL,NULL,9500000,9900000,NULL,0,0,NULL,'t','{"key":"leak:x","kind":"leak","subject":{"device_uid":"GPU-0","process":null,"unattributed":false,"host":false},"state":"firing","severity":"warning","finding":{"id":"f","subject":{"device_uid":"GPU-1","process":{"pid":4711,"started_at_s":1000.0},"unattributed":false,"host":false},"judged_at_s":10000.0,"pattern":"gradual","tier":"alert","severity":"warning","confidence":0.91,"rate_bytes_per_s":206667.0,"eta":{"low_s":2340,"mid_s":2820,"high_s":3720},"r_squared":0.982,"p_value":null,"detector":"trend","onset_at_s":9000.0,"reason":"the floor rose in 14 of 16 windows","blame":[],"framework":null,"growth_bytes":null,"limit_bytes":null,"levels_off_bytes":null,"samples":200,"signals":[],"advice":[]},"opened_at_s":9500.0,"changed_at_s":9900.0,"watch_at_s":null,"firing_at_s":9900.0,"critical_at_s":null,"resolved_at_s":null,"confirmations":0,"held_since_s":null,"alert_confirmations":0,"alert_since_s":null,"evidence":null,"clears":0,"clear_since_s":null,"notices":0,"last_notice_at_s":null,"next_notice_at_s":null,"title":"GPU 0 (A100): python[4711] of alice","title_parts":[{"text":"GPU 0","role":"device","short":null},{"text":" (A100)","role":"model","short":null},{"text":": ","role":"device","short":null},{"text":"python","role":"","short":null},{"text":"[4711]","role":"pid","short":null},{"text":" of alice","role":"owner","short":null}],"ended":"","ended_code":null,"ended_facts":{},"held_back":"","held_code":null,"held_facts":{},"about":null,"group":"","cost":null,"flaps":0,"inhibited_by":"","milder_since_s":null,"first_message":"","told_severity":null,"told_on":[],"told_flapping":false,"told_over":false}',NULL,NULL);
CREATE TABLE baseline(gpu_uuid TEXT PRIMARY KEY, least_bytes INTEGER NOT NULL,
  boot_id TEXT NOT NULL, learned_ts_ms INTEGER NOT NULL) STRICT, WITHOUT ROWID
;
CREATE TABLE checkpoint(id INTEGER PRIMARY KEY, pid INTEGER NOT NULL, started_at_s REAL,
  saved_ts_ms INTEGER NOT NULL, said_by TEXT NOT NULL, detail TEXT) STRICT;
CREATE TABLE decision(id INTEGER PRIMARY KEY, ts_ms INTEGER NOT NULL, alert_key TEXT NOT NULL,
  kind TEXT NOT NULL, notice TEXT NOT NULL, channel TEXT NOT NULL, reason TEXT NOT NULL, code TEXT, facts TEXT) STRICT;
CREATE TABLE delivery(id INTEGER PRIMARY KEY, alert INTEGER REFERENCES alert(id),
  alert_key TEXT NOT NULL, channel TEXT NOT NULL, notice TEXT NOT NULL, message_id TEXT NOT NULL,
  payload TEXT NOT NULL, state TEXT NOT NULL, attempts INTEGER NOT NULL DEFAULT 0,
  created_ts_ms INTEGER NOT NULL, next_try_ts_ms INTEGER, lease_until_ts_ms INTEGER,
  sent_ts_ms INTEGER, error TEXT, dry_run INTEGER NOT NULL DEFAULT 0, held TEXT, known TEXT, fallback_of TEXT, code TEXT, facts TEXT,
  UNIQUE(channel, message_id)) STRICT;
CREATE TABLE event(id INTEGER PRIMARY KEY, ts_ms INTEGER NOT NULL, kind TEXT NOT NULL,
  gpu_uuid TEXT, detail TEXT) STRICT;
CREATE TABLE feedback(id INTEGER PRIMARY KEY, alert_key TEXT NOT NULL,
  opened_ts_ms INTEGER NOT NULL, gpu_uuid TEXT NOT NULL, pid INTEGER, started_at_s REAL,
  unattributed INTEGER NOT NULL, title TEXT NOT NULL, word TEXT NOT NULL, why TEXT, who TEXT,
  given_ts_ms INTEGER NOT NULL, undone_ts_ms INTEGER, host INTEGER NOT NULL DEFAULT 0) STRICT;
INSERT INTO "feedback" VALUES(1,'leak:x',9500000,'GPU-0',NULL,NULL,1,'t','normal',NULL,NULL,9600000,NULL,0);
CREATE TABLE gpu(id INTEGER PRIMARY KEY, uuid TEXT NOT NULL UNIQUE, source TEXT NOT NULL,
  vendor TEXT NOT NULL, position INTEGER, name TEXT NOT NULL, pci_bus TEXT, parent_uuid TEXT,
  memory_kind TEXT NOT NULL, memory_total_bytes INTEGER, first_ts_ms INTEGER NOT NULL,
  last_ts_ms INTEGER NOT NULL) STRICT;
INSERT INTO "gpu" VALUES(1,'GPU-0','nvml','nvidia',0,'NVIDIA A100',NULL,NULL,'dedicated',NULL,1700000040000,1700000045000);
CREATE TABLE gpu_1h(gpu INTEGER NOT NULL, ts_s INTEGER NOT NULL, n INTEGER NOT NULL,
  used_min_bytes INTEGER, used_mean_bytes INTEGER, used_max_bytes INTEGER, used_last_bytes INTEGER,
  util_mean_percent INTEGER, temp_max_c INTEGER, energy_mj INTEGER, PRIMARY KEY(gpu, ts_s))
  STRICT, WITHOUT ROWID;
CREATE TABLE gpu_1m(gpu INTEGER NOT NULL, ts_s INTEGER NOT NULL, n INTEGER NOT NULL,
  used_min_bytes INTEGER, used_mean_bytes INTEGER, used_max_bytes INTEGER, used_last_bytes INTEGER,
  util_mean_percent INTEGER, temp_max_c INTEGER, energy_mj INTEGER, PRIMARY KEY(gpu, ts_s))
  STRICT, WITHOUT ROWID;
CREATE TABLE gpu_raw(ts_ms INTEGER NOT NULL, gpu INTEGER NOT NULL, used_bytes INTEGER,
  util_percent INTEGER, mem_util_percent INTEGER, temp_c INTEGER, power_mw INTEGER,
  clock_mhz INTEGER, unattributed_bytes INTEGER, PRIMARY KEY(ts_ms, gpu)) STRICT, WITHOUT ROWID;
INSERT INTO "gpu_raw" VALUES(1700000040000,1,1000,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "gpu_raw" VALUES(1700000045000,1,1001,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE process(id INTEGER PRIMARY KEY, boot_id TEXT NOT NULL, pid INTEGER NOT NULL,
  started_ts_ms INTEGER, started_at_s REAL, user TEXT, name TEXT NOT NULL, args TEXT,
  parent_pid INTEGER, framework TEXT, framework_sure INTEGER NOT NULL, job TEXT, container TEXT,
  first_ts_ms INTEGER NOT NULL, last_ts_ms INTEGER NOT NULL, program TEXT) STRICT;
CREATE TABLE process_1h(gpu INTEGER NOT NULL, ts_s INTEGER NOT NULL, process INTEGER NOT NULL,
  first_ts_s INTEGER NOT NULL, last_ts_s INTEGER NOT NULL, minutes INTEGER NOT NULL,
  n INTEGER NOT NULL, used_min_bytes INTEGER, used_mean_bytes INTEGER, used_max_bytes INTEGER,
  used_last_bytes INTEGER, top_mean_bytes REAL, host_last_bytes INTEGER, taken_s REAL,
  PRIMARY KEY(gpu, ts_s, process)) STRICT, WITHOUT ROWID
;
CREATE TABLE process_1m(process INTEGER NOT NULL, gpu INTEGER NOT NULL, ts_s INTEGER NOT NULL,
  n INTEGER NOT NULL, used_max_bytes INTEGER, used_last_bytes INTEGER, host_last_bytes INTEGER, used_min_bytes INTEGER, minutes INTEGER NOT NULL DEFAULT 1,
  PRIMARY KEY(process, gpu, ts_s)) STRICT, WITHOUT ROWID;
CREATE TABLE process_counters(ts_ms INTEGER NOT NULL, process INTEGER NOT NULL,
  gpu INTEGER NOT NULL, allocated_bytes INTEGER NOT NULL, reserved_bytes INTEGER NOT NULL,
  inactive_split_bytes INTEGER, peak_bytes INTEGER, PRIMARY KEY(ts_ms, process, gpu))
  STRICT, WITHOUT ROWID;
CREATE TABLE process_counters_1m(process INTEGER NOT NULL, gpu INTEGER NOT NULL,
  ts_s INTEGER NOT NULL, allocated_last_bytes INTEGER NOT NULL,
  allocated_max_bytes INTEGER NOT NULL, reserved_last_bytes INTEGER NOT NULL,
  inactive_split_last_bytes INTEGER, PRIMARY KEY(process, gpu, ts_s)) STRICT, WITHOUT ROWID
;
CREATE TABLE process_raw(ts_ms INTEGER NOT NULL, process INTEGER NOT NULL, gpu INTEGER NOT NULL,
  used_bytes INTEGER, sm_percent INTEGER, host_bytes INTEGER, PRIMARY KEY(ts_ms, process, gpu))
  STRICT, WITHOUT ROWID;
CREATE TABLE profile(id INTEGER PRIMARY KEY, key TEXT NOT NULL, gpu INTEGER NOT NULL
  REFERENCES gpu(id), pid INTEGER, started_at_s REAL, feedback INTEGER, label TEXT NOT NULL,
  begun_ts_ms INTEGER NOT NULL, ended_ts_ms INTEGER NOT NULL, base_bytes INTEGER NOT NULL,
  proven_bytes INTEGER NOT NULL, top_bytes INTEGER NOT NULL, profile TEXT NOT NULL) STRICT;
CREATE TABLE segment(id INTEGER PRIMARY KEY, started_ts_ms INTEGER NOT NULL, boot_id TEXT NOT NULL,
  mono_ms INTEGER NOT NULL, reason TEXT NOT NULL, wall_step_s REAL, gap_s REAL) STRICT;
INSERT INTO "segment" VALUES(1,1700000040000,'boot-1',0,'start',NULL,NULL);
CREATE TABLE silence(id INTEGER PRIMARY KEY, matcher TEXT NOT NULL, from_ts_ms INTEGER NOT NULL,
  until_ts_ms INTEGER NOT NULL, who TEXT, why TEXT, until_resolved INTEGER NOT NULL DEFAULT 0, cleared_ts_ms INTEGER, even_critical INTEGER NOT NULL DEFAULT 0) STRICT;
CREATE TABLE told(delivery INTEGER NOT NULL, alert_key TEXT NOT NULL,
  PRIMARY KEY(alert_key, delivery)) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX process_identity ON process(boot_id, pid, ifnull(started_ts_ms, -1));
CREATE UNIQUE INDEX alert_open ON alert(key) WHERE resolved_ts_ms IS NULL;
CREATE INDEX alert_key ON alert(key, opened_ts_ms);
CREATE INDEX delivery_due ON delivery(next_try_ts_ms) WHERE state = 'pending';
CREATE INDEX delivery_alert ON delivery(alert);
CREATE INDEX delivery_key ON delivery(alert_key);
CREATE VIEW gpu_history AS SELECT datetime(r.ts_ms / 1000, 'unixepoch') AS utc, g.name, g.uuid, r.*
  FROM gpu_raw r JOIN gpu g ON g.id = r.gpu;
CREATE VIEW gpu_hourly AS SELECT datetime(h.ts_s, 'unixepoch') AS utc, g.name, g.uuid, h.*
  FROM gpu_1h h JOIN gpu g ON g.id = h.gpu;
CREATE VIEW open_alerts AS SELECT datetime(opened_ts_ms / 1000, 'unixepoch') AS utc, *
  FROM alert WHERE resolved_ts_ms IS NULL;
CREATE INDEX feedback_alert ON feedback(alert_key);
CREATE UNIQUE INDEX profile_run ON profile(key, gpu, ifnull(pid, -1), ifnull(started_at_s, -1),
  ifnull(feedback, 0));
CREATE VIEW known_programs AS SELECT key, label, count(*) AS runs,
  datetime(max(ended_ts_ms) / 1000, 'unixepoch') AS utc, max(top_bytes) AS top_bytes
  FROM profile WHERE feedback IS NULL GROUP BY key;
CREATE INDEX decision_alert ON decision(alert_key, ts_ms);
CREATE INDEX decision_time ON decision(ts_ms);
CREATE INDEX checkpoint_process ON checkpoint(pid, saved_ts_ms)
;
CREATE VIEW process_minutes AS SELECT m.process, m.gpu, m.ts_s + o.column1 * 60 AS ts_s, m.n,
  ifnull(m.used_min_bytes, m.used_last_bytes) AS used_min_bytes,
  ifnull(m.used_max_bytes, m.used_last_bytes) AS used_max_bytes, m.used_last_bytes,
  m.host_last_bytes, m.ts_s AS row_ts_s, m.minutes AS row_minutes
  FROM process_1m m CROSS JOIN (VALUES (0), (1), (2), (3), (4), (5), (6), (7), (8), (9), (10), (11), (12), (13), (14)) o
  WHERE o.column1 < m.minutes;
CREATE VIEW gpu_minutes AS SELECT gpu, ts_s, n,
  ifnull(used_min_bytes, used_last_bytes) AS used_min_bytes,
  ifnull(used_mean_bytes, used_last_bytes) AS used_mean_bytes,
  ifnull(used_max_bytes, used_last_bytes) AS used_max_bytes, used_last_bytes, util_mean_percent,
  temp_max_c, energy_mj FROM gpu_1m;
COMMIT;
PRAGMA application_id = 1735423844;
PRAGMA user_version = 8;
