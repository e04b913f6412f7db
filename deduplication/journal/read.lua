-- The oldest event on the stream, and those behind a position: of one moment, so that a machine notices what it missed.
local stream, position, count = KEYS[1], ARGV[1], ARGV[2]
local oldest = redis.call('XRANGE', stream, '-', '+', 'COUNT', 1)
return {oldest, redis.call('XREAD', 'COUNT', count, 'STREAMS', stream, position)}
