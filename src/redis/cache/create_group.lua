-- ARGV[2]: a group, which is made where it is new, and then is told what is put on the stream from now on.

local made = redis.pcall('XGROUP', 'CREATE', stream, ARGV[2], '$', 'MKSTREAM')
if made.err then
    return string.find(made.err, 'BUSYGROUP', 1, true) and 0 or made
end
redis.call('PEXPIRE', stream, whole(retention))
return 1
