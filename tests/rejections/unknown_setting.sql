SET validater = 'off';
