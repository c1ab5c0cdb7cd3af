-- How a job is stored: one byte string per job. `records.lua` packs and unpacks it, `records.py` does the same in the
-- client, and `fast_path.lua` changes single parts of it.
--
-- All numbers have the lowest byte first. Offsets are counted from 1, as `struct.unpack` counts them.
--
--   base part, 32 bytes at offset 1, format records.BASE
--     1  B   flags: 1 lease part, 2 end part, 4 rare fields, 8 cancel_asked, 16 the payload has a key of its own
--     2  B   state: its place in records.STATES
--     3  h   priority
--     5  B   hold
--     6  B   key_scope: its place in records.SCOPES
--     7  B   codec: its place in records.CODECS; 0: among the rare fields
--     8  B   length of payload_hash
--     9  I6  arrival
--    15  H   length of task
--    17  I7  created
--    24  B   generation
--    25  I7  due
--    32  B   length of lane; 0: no lane
--   lease part, 48 bytes at offset 33 if flag 1, format records.LEASE
--     0  H   attempt
--     2  B   losses
--     3  B   max_losses
--     4  I4  max_attempts
--     8  I7  fence
--    15  B   0
--    16  I7  lease_expires; 0: none
--    23  B   length of owner
--    24  I6  lease_len
--    30  B   length of token; 0: none
--    31  B   length of settled_token; 0: none
--    32  I7  started; 0: none
--    39  B   0
--    40  I7  last_started; 0: none
--    47  B   0
--   end part, 36 bytes if flag 2, format records.ENDED
--     0  I7  finished; 0: none
--     7  B   reason: its place in records.REASONS; 0: none
--     8  I7  visible_until
--    15  B   0
--    16  I7  result_until
--    23  B   0
--    24  I7  key_until
--    31  B   0
--    32  I4  length of result + 1; 0: no result
--   length of the rare fields, I4, if flag 4
--   strings, in this order: task, lane, payload_hash, owner, token, settled_token, result, rare fields, tail
--
-- An instant of 2^55 stands for FOREVER. A value that does not fit its place (a long lane name, a large number) stands
-- among the rare fields, which win. These are a msgpack map by field name, and hold what most jobs do not have.
-- The tail comes from the client and is not opened here, except by `records.metadata`: length of the metadata (H), the
-- metadata as a msgpack map, the payload. A payload with a key of its own (flag 16) is not in the tail.

local records = {
  BASE = "<BBhBBBBI6HI7BI7B",
  LEASE = "<HBBI4I7BI7BI6BBI7BI7B",
  ENDED = "<I7BI7BI7BI7BI4",
  FOREVER = 4611686018427387904,
  LAST_INSTANT = 36028797018963968,
}

-- A job in an answer: the stored form, the payload if it has a key of its own, queue, id, and the lengths of these two.
function records.blob(raw, payload, queue, id)
  return raw .. (payload or "") .. queue .. id .. struct.pack("<HH", #queue, #id)
end
