-- The fields of commands and answers, and of what is in them. Generated from the classes in src/holdfast/model by
-- `make lua`. A type: `code` is "value" (text, number, boolean), "bytes", "record" (a stored job or lease), "struct"
-- (of the class `of`), "list" (of the type `of`), "dict" (names to values) or "union" (a table whose `kind` is its
-- class). An item of a list that is `optional` may be false, which stands for None. `at` of an answer is left out.
-- The tables make their entries when they are read, because every call of the script runs this file.

local schemas = {}
schemas.commands = setmetatable({}, {
  __index = function(entries, name)
    local entry
    if name == "enqueue" then
      entry = "Enqueue"
    elseif name == "exchange" then
      entry = "Exchange"
    elseif name == "renew" then
      entry = "Renew"
    elseif name == "expired" then
      entry = "Expired"
    elseif name == "disown" then
      entry = "Disown"
    elseif name == "heartbeat" then
      entry = "Heartbeat"
    elseif name == "workers" then
      entry = "Workers"
    elseif name == "stop_worker" then
      entry = "StopWorker"
    elseif name == "forget_worker" then
      entry = "ForgetWorker"
    elseif name == "cancel" then
      entry = "Cancel"
    elseif name == "requeue" then
      entry = "Requeue"
    elseif name == "trigger" then
      entry = "Trigger"
    elseif name == "delete" then
      entry = "Delete"
    elseif name == "amend" then
      entry = "Amend"
    elseif name == "pause" then
      entry = "Pause"
    elseif name == "resume" then
      entry = "Resume"
    elseif name == "clear" then
      entry = "Clear"
    elseif name == "emptied" then
      entry = "Emptied"
    elseif name == "remove_queue" then
      entry = "RemoveQueue"
    elseif name == "put_pool" then
      entry = "PutPool"
    elseif name == "resize" then
      entry = "Resize"
    elseif name == "pools" then
      entry = "Pools"
    elseif name == "put_schedule" then
      entry = "PutSchedule"
    elseif name == "drop_schedule" then
      entry = "DropSchedule"
    elseif name == "schedules" then
      entry = "Schedules"
    elseif name == "get" then
      entry = "Get"
    elseif name == "find" then
      entry = "Find"
    elseif name == "stats" then
      entry = "Stats"
    elseif name == "lanes" then
      entry = "Lanes"
    elseif name == "prune" then
      entry = "Prune"
    elseif name == "now" then
      entry = "Now"
    end
    entries[name] = entry
    return entry
  end,
})
schemas.answers = setmetatable({}, {
  __index = function(entries, name)
    local entry
    if name == "enqueue" then
      entry = "EnqueueAnswer"
    elseif name == "exchange" then
      entry = "ExchangeAnswer"
    elseif name == "renew" then
      entry = "RenewAnswer"
    elseif name == "expired" then
      entry = "ExpiredAnswer"
    elseif name == "disown" then
      entry = "DisownAnswer"
    elseif name == "heartbeat" then
      entry = "HeartbeatAnswer"
    elseif name == "workers" then
      entry = "WorkersAnswer"
    elseif name == "stop_worker" then
      entry = "WorkerAnswer"
    elseif name == "forget_worker" then
      entry = "WorkerAnswer"
    elseif name == "cancel" then
      entry = "CancelJobsAnswer"
    elseif name == "requeue" then
      entry = "OperateAnswer"
    elseif name == "trigger" then
      entry = "OperateAnswer"
    elseif name == "delete" then
      entry = "OperateAnswer"
    elseif name == "amend" then
      entry = "OperateAnswer"
    elseif name == "pause" then
      entry = "ScopeAnswer"
    elseif name == "resume" then
      entry = "ScopeAnswer"
    elseif name == "clear" then
      entry = "ScopeAnswer"
    elseif name == "emptied" then
      entry = "EmptiedAnswer"
    elseif name == "remove_queue" then
      entry = "RemoveQueueAnswer"
    elseif name == "put_pool" then
      entry = "PoolAnswer"
    elseif name == "resize" then
      entry = "PoolAnswer"
    elseif name == "pools" then
      entry = "PoolsAnswer"
    elseif name == "put_schedule" then
      entry = "SchedulesAnswer"
    elseif name == "drop_schedule" then
      entry = "SchedulesAnswer"
    elseif name == "schedules" then
      entry = "SchedulesAnswer"
    elseif name == "get" then
      entry = "GetAnswer"
    elseif name == "find" then
      entry = "FindAnswer"
    elseif name == "stats" then
      entry = "StatsAnswer"
    elseif name == "lanes" then
      entry = "LanesAnswer"
    elseif name == "prune" then
      entry = "PruneAnswer"
    elseif name == "now" then
      entry = "NowAnswer"
    end
    entries[name] = entry
    return entry
  end,
})
schemas.structs = setmetatable({}, {
  __index = function(entries, name)
    local entry
    if name == "Accepted" then
      entry = {
        { name = "status", code = "value" },
        { name = "id", code = "value" },
        { name = "state", code = "value" },
        { name = "arrival", code = "value" },
        { name = "generation", code = "value" },
        { name = "position", code = "value" },
        { name = "depth", code = "value" },
        { name = "result", code = "bytes" },
        { name = "codec", code = "value" },
      }
    elseif name == "Amend" then
      entry = {
        { name = "queue", code = "value" },
        { name = "ids", code = "list", of = { code = "value" } },
        { name = "result_ttl", code = "value" },
        { name = "retention", code = "value" },
        { name = "priority", code = "value" },
        { name = "due", code = "value" },
        { name = "reply", code = "value" },
      }
    elseif name == "Cancel" then
      entry = {
        { name = "queue", code = "value" },
        { name = "ids", code = "list", of = { code = "value" } },
        { name = "note", code = "value" },
      }
    elseif name == "CancelJobsAnswer" then
      entry = {
        { name = "jobs", code = "list", of = { code = "struct", of = "CancelResult" } },
      }
    elseif name == "CancelResult" then
      entry = {
        { name = "status", code = "value" },
        { name = "state", code = "value" },
      }
    elseif name == "Claim" then
      entry = {
        { name = "claim_id", code = "value" },
        { name = "worker", code = "value" },
        { name = "queues", code = "list", of = { code = "struct", of = "QueueClaim" } },
        { name = "limit", code = "value" },
        { name = "prefetch", code = "value" },
      }
    elseif name == "Clear" then
      entry = {
        { name = "queue", code = "value" },
        { name = "lane", code = "value" },
      }
    elseif name == "Delete" then
      entry = {
        { name = "queue", code = "value" },
        { name = "ids", code = "list", of = { code = "value" } },
      }
    elseif name == "DepthLimit" then
      entry = {
        { name = "queue", code = "value" },
        { name = "limit", code = "value" },
        { name = "lane", code = "value" },
        { name = "each_lane", code = "value" },
      }
    elseif name == "Disown" then
      entry = {
        { name = "workers", code = "list", of = { code = "value" } },
      }
    elseif name == "DisownAnswer" then
      entry = {
        { name = "leases", code = "list", of = { code = "struct", of = "JobKey" } },
      }
    elseif name == "DropSchedule" then
      entry = {
        { name = "name", code = "value" },
      }
    elseif name == "Emptied" then
      entry = {
        { name = "queue", code = "value" },
      }
    elseif name == "EmptiedAnswer" then
      entry = {
        { name = "emptied", code = "value" },
      }
    elseif name == "Enqueue" then
      entry = {
        { name = "groups", code = "list", of = { code = "struct", of = "Group" } },
      }
    elseif name == "EnqueueAnswer" then
      entry = {
        { name = "groups", code = "list", of = { code = "union" } },
      }
    elseif name == "ErrorInfo" then
      entry = {
        { name = "type", code = "value" },
        { name = "message", code = "value" },
        { name = "traceback", code = "value" },
      }
    elseif name == "Exchange" then
      entry = {
        { name = "settlements", code = "list", of = { code = "struct", of = "Settlement" } },
        { name = "starts", code = "list", of = { code = "struct", of = "Start" } },
        { name = "claim", code = "struct", of = "Claim" },
      }
    elseif name == "ExchangeAnswer" then
      entry = {
        { name = "settled", code = "list", of = { code = "value" } },
        { name = "started", code = "list", of = { code = "value" } },
        { name = "emptied", code = "list", of = { code = "struct", of = "LaneName" } },
        { name = "leases", code = "list", of = { code = "record" } },
        { name = "next_due", code = "value" },
      }
    elseif name == "Expired" then
      entry = {
        { name = "worker", code = "value" },
        { name = "limit", code = "value" },
        { name = "tasks", code = "list", of = { code = "value" } },
      }
    elseif name == "ExpiredAnswer" then
      entry = {
        { name = "leases", code = "list", of = { code = "struct", of = "ExpiredLease" } },
      }
    elseif name == "ExpiredLease" then
      entry = {
        { name = "queue", code = "value" },
        { name = "id", code = "value" },
        { name = "task", code = "value" },
        { name = "token", code = "value" },
        { name = "owner", code = "value" },
        { name = "lease_expires", code = "value" },
        { name = "state", code = "value" },
        { name = "attempt", code = "value" },
        { name = "losses", code = "value" },
        { name = "max_attempts", code = "value" },
        { name = "max_losses", code = "value" },
        { name = "cancel_asked", code = "value" },
      }
    elseif name == "Find" then
      entry = {
        { name = "queue", code = "value" },
        { name = "state", code = "value" },
        { name = "task", code = "value" },
        { name = "lane", code = "value" },
        { name = "since", code = "value" },
        { name = "metadata", code = "dict" },
        { name = "limit", code = "value" },
        { name = "cursor", code = "value" },
        { name = "scan", code = "value" },
      }
    elseif name == "FindAnswer" then
      entry = {
        { name = "jobs", code = "list", of = { code = "record" } },
        { name = "cursor", code = "value" },
      }
    elseif name == "ForgetWorker" then
      entry = {
        { name = "worker", code = "value" },
      }
    elseif name == "Get" then
      entry = {
        { name = "jobs", code = "list", of = { code = "struct", of = "JobKey" } },
      }
    elseif name == "GetAnswer" then
      entry = {
        { name = "jobs", code = "list", of = { code = "record", optional = true } },
      }
    elseif name == "Given" then
      entry = {
        { name = "max_attempts", code = "value" },
        { name = "max_losses", code = "value" },
        { name = "timeout", code = "value" },
        { name = "lease_len", code = "value" },
        { name = "result_ttl", code = "value" },
        { name = "retention", code = "value" },
      }
    elseif name == "Group" then
      entry = {
        { name = "jobs", code = "list", of = { code = "struct", of = "NewJob" } },
        { name = "limits", code = "list", of = { code = "struct", of = "DepthLimit" } },
      }
    elseif name == "GroupAccepted" then
      entry = {
        { name = "jobs", code = "list", of = { code = "struct", of = "Accepted" } },
      }
    elseif name == "GroupConflict" then
      entry = {
        { name = "job", code = "struct", of = "JobKey" },
      }
    elseif name == "GroupFull" then
      entry = {
        { name = "queue", code = "value" },
        { name = "lane", code = "value" },
        { name = "depth", code = "value" },
        { name = "limit", code = "value" },
      }
    elseif name == "GroupOrphan" then
      entry = {
        { name = "parent", code = "struct", of = "JobKey" },
      }
    elseif name == "Heartbeat" then
      entry = {
        { name = "worker", code = "struct", of = "WorkerRecord" },
      }
    elseif name == "HeartbeatAnswer" then
      entry = {
        { name = "stop", code = "value" },
      }
    elseif name == "JobKey" then
      entry = {
        { name = "queue", code = "value" },
        { name = "id", code = "value" },
      }
    elseif name == "LaneName" then
      entry = {
        { name = "queue", code = "value" },
        { name = "lane", code = "value" },
      }
    elseif name == "LaneRecord" then
      entry = {
        { name = "queue", code = "value" },
        { name = "lane", code = "value" },
        { name = "head", code = "value" },
        { name = "depth", code = "value" },
        { name = "paused", code = "value" },
        { name = "totals", code = "struct", of = "Totals" },
        { name = "fence", code = "value" },
        { name = "emptied", code = "value" },
      }
    elseif name == "Lanes" then
      entry = {
        { name = "queue", code = "value" },
      }
    elseif name == "LanesAnswer" then
      entry = {
        { name = "lanes", code = "list", of = { code = "struct", of = "LaneRecord" } },
      }
    elseif name == "NewJob" then
      entry = {
        { name = "queue", code = "value" },
        { name = "id", code = "value" },
        { name = "task", code = "value" },
        { name = "tail", code = "bytes" },
        { name = "payload_hash", code = "bytes" },
        { name = "priority", code = "value" },
        { name = "delay", code = "value" },
        { name = "due", code = "value" },
        { name = "expires", code = "value" },
        { name = "lane", code = "value" },
        { name = "pool", code = "struct", of = "PoolPlace" },
        { name = "fresh_id", code = "value" },
        { name = "unique_key", code = "value" },
        { name = "key_scope", code = "value" },
        { name = "key_window", code = "value" },
        { name = "parents", code = "list", of = { code = "struct", of = "Parent" } },
        { name = "reply", code = "value" },
        { name = "given", code = "struct", of = "Given" },
      }
    elseif name == "Now" then
      entry = {}
    elseif name == "NowAnswer" then
      entry = {}
    elseif name == "OperateAnswer" then
      entry = {
        { name = "jobs", code = "list", of = { code = "struct", of = "OperateResult" } },
      }
    elseif name == "OperateResult" then
      entry = {
        { name = "status", code = "value" },
        { name = "state", code = "value" },
      }
    elseif name == "Parent" then
      entry = {
        { name = "job", code = "struct", of = "JobKey" },
        { name = "any_end", code = "value" },
      }
    elseif name == "Pause" then
      entry = {
        { name = "queue", code = "value" },
        { name = "lane", code = "value" },
      }
    elseif name == "PoolAnswer" then
      entry = {
        { name = "pool", code = "struct", of = "PoolRecord" },
        { name = "changed", code = "value" },
      }
    elseif name == "PoolPlace" then
      entry = {
        { name = "lanes", code = "value" },
        { name = "key", code = "value" },
      }
    elseif name == "PoolRecord" then
      entry = {
        { name = "name", code = "value" },
        { name = "lanes", code = "value" },
        { name = "epoch", code = "value" },
        { name = "turn", code = "value" },
        { name = "old_live", code = "value" },
      }
    elseif name == "Pools" then
      entry = {}
    elseif name == "PoolsAnswer" then
      entry = {
        { name = "pools", code = "list", of = { code = "struct", of = "PoolRecord" } },
      }
    elseif name == "ProgressRecord" then
      entry = {
        { name = "fraction", code = "value" },
        { name = "note", code = "value" },
      }
    elseif name == "Prune" then
      entry = {
        { name = "limit", code = "value" },
      }
    elseif name == "PruneAnswer" then
      entry = {
        { name = "deleted", code = "list", of = { code = "struct", of = "JobKey" } },
        { name = "expired", code = "list", of = { code = "struct", of = "JobKey" } },
        { name = "workers", code = "list", of = { code = "value" } },
        { name = "more", code = "value" },
      }
    elseif name == "PutPool" then
      entry = {
        { name = "name", code = "value" },
        { name = "lanes", code = "value" },
      }
    elseif name == "PutSchedule" then
      entry = {
        { name = "schedule", code = "struct", of = "ScheduleRecord" },
      }
    elseif name == "QueueClaim" then
      entry = {
        { name = "queue", code = "value" },
        { name = "tasks", code = "list", of = { code = "struct", of = "TaskClaim" } },
        { name = "limit", code = "value" },
      }
    elseif name == "QueueStats" then
      entry = {
        { name = "queue", code = "value" },
        { name = "paused", code = "value" },
        { name = "counts", code = "dict" },
        { name = "due", code = "value" },
        { name = "oldest_due", code = "value" },
        { name = "next_due", code = "value" },
        { name = "totals", code = "struct", of = "Totals" },
        { name = "ready_tasks", code = "list", of = { code = "value" } },
        { name = "clearing", code = "value" },
      }
    elseif name == "RemoveQueue" then
      entry = {
        { name = "queue", code = "value" },
      }
    elseif name == "RemoveQueueAnswer" then
      entry = {
        { name = "status", code = "value" },
        { name = "jobs", code = "value" },
        { name = "workers", code = "list", of = { code = "value" } },
      }
    elseif name == "Renew" then
      entry = {
        { name = "jobs", code = "list", of = { code = "struct", of = "Renewal" } },
      }
    elseif name == "RenewAnswer" then
      entry = {
        { name = "jobs", code = "list", of = { code = "struct", of = "RenewResult" } },
      }
    elseif name == "RenewResult" then
      entry = {
        { name = "status", code = "value" },
        { name = "lease_expires", code = "value" },
      }
    elseif name == "Renewal" then
      entry = {
        { name = "queue", code = "value" },
        { name = "id", code = "value" },
        { name = "token", code = "value" },
        { name = "progress", code = "struct", of = "ProgressRecord" },
      }
    elseif name == "Requeue" then
      entry = {
        { name = "queue", code = "value" },
        { name = "ids", code = "list", of = { code = "value" } },
        { name = "limits", code = "list", of = { code = "struct", of = "DepthLimit" } },
      }
    elseif name == "Resize" then
      entry = {
        { name = "name", code = "value" },
        { name = "lanes", code = "value" },
      }
    elseif name == "Resume" then
      entry = {
        { name = "queue", code = "value" },
        { name = "lane", code = "value" },
      }
    elseif name == "ScheduleRecord" then
      entry = {
        { name = "name", code = "value" },
        { name = "queue", code = "value" },
        { name = "task", code = "value" },
        { name = "when", code = "value" },
        { name = "payload", code = "bytes" },
        { name = "codec", code = "value" },
        { name = "paused", code = "value" },
        { name = "options", code = "dict" },
      }
    elseif name == "Schedules" then
      entry = {}
    elseif name == "SchedulesAnswer" then
      entry = {
        { name = "schedules", code = "list", of = { code = "struct", of = "ScheduleRecord" } },
      }
    elseif name == "ScopeAnswer" then
      entry = {
        { name = "count", code = "value" },
        { name = "changed", code = "value" },
      }
    elseif name == "Settlement" then
      entry = {
        { name = "queue", code = "value" },
        { name = "id", code = "value" },
        { name = "token", code = "value" },
        { name = "target", code = "value" },
        { name = "reason", code = "value" },
        { name = "note", code = "value" },
        { name = "delay", code = "value" },
        { name = "due", code = "value" },
        { name = "refund", code = "value" },
        { name = "result", code = "bytes" },
        { name = "error", code = "struct", of = "ErrorInfo" },
        { name = "result_ttl", code = "value" },
        { name = "retention", code = "value" },
        { name = "listed_expiry", code = "value" },
        { name = "progress", code = "struct", of = "ProgressRecord" },
        { name = "lane", code = "value" },
      }
    elseif name == "Start" then
      entry = {
        { name = "queue", code = "value" },
        { name = "id", code = "value" },
        { name = "token", code = "value" },
      }
    elseif name == "Stats" then
      entry = {
        { name = "queues", code = "list", of = { code = "value" } },
      }
    elseif name == "StatsAnswer" then
      entry = {
        { name = "queues", code = "list", of = { code = "struct", of = "QueueStats" } },
      }
    elseif name == "StopWorker" then
      entry = {
        { name = "worker", code = "value" },
      }
    elseif name == "TaskClaim" then
      entry = {
        { name = "task", code = "value" },
        { name = "lease_len", code = "value" },
        { name = "max_attempts", code = "value" },
        { name = "max_losses", code = "value" },
        { name = "limit", code = "value" },
      }
    elseif name == "Totals" then
      entry = {
        { name = "succeeded", code = "value" },
        { name = "failed", code = "value" },
        { name = "cancelled", code = "value" },
      }
    elseif name == "Trigger" then
      entry = {
        { name = "queue", code = "value" },
        { name = "ids", code = "list", of = { code = "value" } },
      }
    elseif name == "WorkerAnswer" then
      entry = {
        { name = "found", code = "value" },
      }
    elseif name == "WorkerRecord" then
      entry = {
        { name = "worker", code = "value" },
        { name = "tasks", code = "list", of = { code = "value" } },
        { name = "queues", code = "list", of = { code = "value" } },
        { name = "host", code = "value" },
        { name = "pid", code = "value" },
        { name = "process", code = "value" },
        { name = "slots", code = "value" },
        { name = "busy", code = "value" },
        { name = "started", code = "value" },
        { name = "interval", code = "value" },
        { name = "seen", code = "value" },
        { name = "stop_asked", code = "value" },
      }
    elseif name == "Workers" then
      entry = {}
    elseif name == "WorkersAnswer" then
      entry = {
        { name = "workers", code = "list", of = { code = "struct", of = "WorkerRecord" } },
      }
    end
    entries[name] = entry
    return entry
  end,
})
