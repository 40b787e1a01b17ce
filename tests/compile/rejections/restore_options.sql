RESTORE FROM CHECKPOINT 'before' WITH (sink = 'keep');
RESTORE FROM CHECKPOINT 3 WITH (sinks = 'forget');
RESTORE FROM CHECKPOINT 3 WITH (pipeline = '../x');
