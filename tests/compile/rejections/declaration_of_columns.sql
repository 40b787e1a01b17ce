CREATE SOURCE a WITH (connector = 'memory');
CREATE SOURCE b (k BIGNIT) WITH (connector = 'memory');
CREATE SOURCE c (k BIGINT, PRIMARY KEY (kk)) WITH (connector = 'memory');
CREATE SOURCE d (k BIGINT, _op STRING) WITH (connector = 'memory');
CREATE SOURCE e (auction BIGINT, prize BIGINT) WITH (connector = 'generator', kind = 'nexmark');
CREATE SOURCE f (auction STRING) WITH (connector = 'generator', kind = 'nexmark');
CREATE LOOKUP TABLE g (id BIGINT, twice AS id * 2) WITH (connector = 'memory');
