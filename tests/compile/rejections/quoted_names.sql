CREATE SOURCE a ("user id" BIGINT) WITH (connector = 'memory');
CREATE SOURCE "my source" (id BIGINT) WITH (connector = 'memory');
CREATE SOURCE b (user id BIGINT) WITH (connector = 'memory');
CREATE SOURCE c (user-id BIGINT) WITH (connector = 'memory');
