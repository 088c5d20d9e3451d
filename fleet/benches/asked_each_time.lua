-- GCRA in the store, as short as possible while reading the server's time and letting idle keys expire.
local now = redis.call('TIME')
local micros = now[1] * 1000000 + now[2]
local arrival = math.max(tonumber(redis.call('GET', KEYS[1])) or 0, micros)
local next = arrival + tonumber(ARGV[1])
if next - micros > tonumber(ARGV[2]) then return 0 end
redis.call('SET', KEYS[1], next, 'PX', 60000)
return 1
